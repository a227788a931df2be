"""The identity of a call: function, fingerprint, arguments, inputs and secrets."""
