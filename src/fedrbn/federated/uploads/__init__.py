"""What an upload must be, and how a round's uploads are collected."""
