"""BlitzScale (OSDI'25): fast and live autoscaling. So far its decisions; README.md says what."""
