-- Keeps the entry of a process, writes it if it is not there, or removes it.
--
-- KEYS[1]  the entry: a hash
-- ARGV[1]  how long it lasts, in milliseconds; 0 removes it
-- ARGV[2…] its fields and their values, in turn
--
-- Reply, one integer:  0  there is none
--                      1  it is there
--
-- May be repeated: it writes the same again.
--
-- PEXPIRE comes first: a user who may write and not expire must leave nothing that stays.

local kept = redis.call('PEXPIRE', KEYS[1], ARGV[1])
if ARGV[1] == '0' then
  return 0
end
if kept == 0 then
  redis.call('HSET', KEYS[1], unpack(ARGV, 2))
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return 1
