-- Withdraws a party that has arrived, or may arrive late. The generation goes on without it.
--
-- KEYS[1]  the parties of the barrier
-- ARGV[1]  the party
--
-- Reply: 1 it had arrived and is withdrawn, 0 it was not there: its generation is over, or it never arrived.
--
-- May be repeated, with the same answer. An arrival that runs within ten minutes finds that the party was withdrawn.

local call = redis.call
if call('ZSCORE', KEYS[1], 't:' .. ARGV[1]) then
  return 1
end
local withdrawn = call('ZREM', KEYS[1], 'a:' .. ARGV[1])
if withdrawn == 1 then
  call('ZREM', KEYS[1], 'g:' .. ARGV[1])
elseif call('ZSCORE', KEYS[1], 'g:' .. ARGV[1]) then
  return 0
end
local time = call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
call('ZREMRANGEBYSCORE', KEYS[1], string.format('(%.0f', 600000 - ms), '(0')
call('ZADD', KEYS[1], string.format('%.0f', -ms), 't:' .. ARGV[1])
if call('PTTL', KEYS[1]) < 600000 then
  call('PEXPIRE', KEYS[1], 600000)
end
return withdrawn
