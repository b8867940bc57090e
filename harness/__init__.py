from harness import compiled

compiled.install()
