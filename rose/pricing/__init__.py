"""Cost of borrowed rollouts: price books, allocation of device time and money, and cost per correct answer."""
