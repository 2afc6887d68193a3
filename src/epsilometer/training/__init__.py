"""Training that is played: DP-SGD of many models at once."""
