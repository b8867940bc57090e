"""BlitzScale (OSDI'25): fast and live autoscaling; README.md says what is where."""
