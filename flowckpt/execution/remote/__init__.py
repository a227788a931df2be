"""Steps that run somewhere else: what is sent, what comes back, and how it is waited for."""
