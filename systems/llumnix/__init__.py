"""Llumnix (OSDI'24): decisions about dispatching and migrating requests between instances."""
