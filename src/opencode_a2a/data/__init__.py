"""What an operator does with stored data: back up, restore, copy, check, purge and export it."""
