"""AQUA-PLACER (section 5): which server each model goes to, and which model lends to which."""
