-- Tells how far a latch is and who was counted. Changes nothing.
--
-- KEYS[1]  the latch: a decimal string; absent is open
-- KEYS[2]  the notes on it, see the notes step
--
-- Reply: {count, remaining time in ms or below 0, the first hundred participants}.

local text = redis.call('GET', KEYS[1])
if text and not string.find(text, '^%-?%d+$') then
  return redis.error_reply('WRONGTYPE the key holds a string that is not a count')
end
local found = redis.call('ZRANGEBYSCORE', KEYS[2], '-1', '-1', 'LIMIT', 0, 100)
for i = 1, #found do
  found[i] = string.sub(found[i], 3)
end
return { math.max(tonumber(text or 0), 0), redis.call('PTTL', KEYS[1]), found }
