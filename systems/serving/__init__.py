"""What systems serve with, once for all: iteration, replica loop, and the load of an instance."""
