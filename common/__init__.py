"""What every task shares: the build, the simulator, the checks and the command lines. See common/README.md."""
