import harness as harness  # before any module here: it finds those that are compiled
