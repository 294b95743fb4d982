"""What happens, decided by pure code: standard library only, no await, no I/O."""
