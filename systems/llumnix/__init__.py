"""Llumnix (OSDI'24): dispatches requests to instances and migrates them between instances."""
