"""The agent whose roles are played by a language model: every reply is checked before anything is proposed."""
