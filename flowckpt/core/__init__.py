"""The pure core: records, language, codec, identity and replay. Only `system` touches the interpreter and the OS."""
