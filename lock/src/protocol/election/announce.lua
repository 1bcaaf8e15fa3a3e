-- Announces a leader, with what it publishes of itself.
--
-- KEYS[1]  the lock: a hash of holder -> count
-- KEYS[2]  the entry of the leader: a hash of id, n, token, value; observers hear of changes on a channel of the same name
-- ARGV[1]  the hold
-- ARGV[2]  the number of the announcement under this hold: a later one has a higher number
-- ARGV[3]  its fencing token
-- ARGV[4]  how to publish: P, S or C, see the grant step
-- ARGV[5]  the value; absent for none
--
-- Reply, one integer: 1 it is announced, or a later announcement of the same leader is; 0 it leads no more, nothing was changed.
--
-- May be repeated: the entry is the same. A copy that runs late finds another holder, or a later announcement.
--
-- The entry outlasts the lock by ten seconds, and counts only while its id is the holder of the lock. What is no entry of a leader
-- is refused, not overwritten.

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0
end
local known = redis.call('HMGET', KEYS[2], 'id', 'n')
if not (known[1] and string.find(known[1], '.:.') and tonumber(known[2])) and redis.call('PTTL', KEYS[2]) ~= -2 then
  return redis.error_reply('WRONGTYPE ' .. KEYS[2] .. ' holds a hash that is no entry of a leader')
end
if known[1] == ARGV[1] and tonumber(known[2]) > tonumber(ARGV[2]) then
  return 1
end
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], 'id', ARGV[1], 'n', ARGV[2], 'token', ARGV[3])
if ARGV[5] then
  redis.call('HSET', KEYS[2], 'value', ARGV[5])
end
redis.call('PEXPIRE', KEYS[2], math.max(redis.call('PTTL', KEYS[1]), 0) + 10000)
-- Observers who miss the message look by themselves.
redis.pcall(ARGV[4] == 'S' and 'SPUBLISH' or 'PUBLISH', KEYS[2], '')
return 1
