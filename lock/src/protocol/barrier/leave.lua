-- Withdraws a party that has arrived, or may arrive late. The generation goes on without it.
--
-- KEYS[1]  the parties of the barrier
-- KEYS[2]  the barrier; absent in a slot that is migrating
-- ARGV[1]  the party
--
-- Reply: 1 it had arrived and is withdrawn, 0 it was not there: its generation is over, or it never arrived.
--
-- May be repeated: the second time finds nothing. An arrival that runs late finds that the party was withdrawn.

local withdrawn = redis.call('ZREM', KEYS[1], 'a:' .. ARGV[1])
if not redis.call('ZSCORE', KEYS[1], 'g:' .. ARGV[1]) then
  local gen = KEYS[2] and redis.pcall('HGET', KEYS[2], 'gen')
  if type(gen) ~= 'string' then
    local time = redis.call('TIME')
    gen = string.format('%.0f', time[1] * 1000000 + time[2])
  end
  redis.call('ZADD', KEYS[1], gen, 'g:' .. ARGV[1])
  if redis.call('PTTL', KEYS[1]) == -1 then
    redis.call('PEXPIRE', KEYS[1], 600000)
  end
end
return withdrawn
