-- Extends the leases of parties that wait at barriers.
--
-- KEYS     for each party: the parties of its barrier, the barrier
-- ARGV     for each party: the party, its lease from now on in milliseconds
--
-- Reply: one integer for each: 1 it has its lease, 0 it is gone: its generation is over, or the server lost it.
--
-- May be repeated: a lease only ever grows, and a party that is gone never comes back.
--
-- A key that holds something else now has no party of ours. Any other error is the answer.

local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local held = {}
for i = 1, #ARGV, 2 do
  local parties, barrier = KEYS[i], KEYS[i + 1]
  local lives = redis.pcall('ZSCORE', parties, 'a:' .. ARGV[i])
  if type(lives) == 'string' then
    local lease = tonumber(ARGV[i + 1])
    if tonumber(lives) < ms + lease then
      redis.call('ZADD', parties, string.format('%.0f', ms + lease), 'a:' .. ARGV[i])
    end
    for _, key in ipairs({ parties, barrier }) do
      redis.call('PEXPIRE', key, math.max(2 * lease + 600000, redis.call('PTTL', key)))
    end
    held[#held + 1] = 1
  elseif type(lives) == 'table' and not string.find(lives.err, 'WRONGTYPE', 1, true) then
    return lives
  else
    held[#held + 1] = 0
  end
end
return held
