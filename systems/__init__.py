try:
    import harness as harness  # before any module here: it finds those that are compiled
except ModuleNotFoundError as missing:
    if missing.name != "harness":  # a vLLM server has AQUA's plugin and what that needs, no more
        raise
