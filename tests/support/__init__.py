"""What the tests share: real processes, real locks, and the only place where a test may wait by asking again."""
