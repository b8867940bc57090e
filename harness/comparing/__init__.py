"""Whether one system is better than another: runs paired by seed and by request."""
