"""What a borrowed rollout cost: price books, allocation of device time and money, and cost per correct answer."""
