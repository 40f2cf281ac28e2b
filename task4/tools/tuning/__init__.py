"""The tile planner and the tuner."""
