"""What the commands of this task do."""
