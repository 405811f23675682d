"""What each team is sent of a period: its charges, corrections of earlier periods, shared costs and credits."""
