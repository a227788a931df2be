"""What makes a call the same call: function, fingerprint, arguments, inputs and secrets."""
