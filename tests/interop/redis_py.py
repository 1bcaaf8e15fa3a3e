"""Takes and releases a lock of redis-py, on command: one of `try`, `wait` and `unlock` a line.

Usage: redis_py.py HOST PORT KEY
"""

import sys

import redis

host, port, key = sys.argv[1], int(sys.argv[2]), sys.argv[3]
lock = redis.Redis(host=host, port=port).lock(key, timeout=30)
print("ready", flush=True)
for line in sys.stdin:
    command = line.strip()
    if command == "try":
        answer = "taken" if lock.acquire(blocking=False) else "refused"
    elif command == "wait":
        answer = "taken" if lock.acquire(blocking=True) else "refused"
    else:
        lock.release()
        answer = "released"
    print(answer, flush=True)
