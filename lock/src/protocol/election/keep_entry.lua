-- Extends the time that the entry of a leader is kept, apart from the lock, for a slot that is migrating.
--
-- KEYS[1]  the entry of the leader
-- ARGV[1]  the hold of the leader
-- ARGV[2]  how long to keep it, in milliseconds
--
-- Reply: 1, also if there is no entry, or not of this leader: then nobody is told who leads until that announces itself again.
--
-- May be repeated: it is kept for as long.

if redis.pcall('HGET', KEYS[1], 'id') == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1
