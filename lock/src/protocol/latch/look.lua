-- Tells how far a latch is. Changes nothing.
--
-- KEYS[1]  the latch: a decimal string; absent is open
-- KEYS[2]  the notes on it, see the notes step; absent for the count alone, in a slot that is migrating
-- ARGV[1]  1 if an absent latch with a noted count was lost, 0 if Redisson may have opened it
--
-- Reply: {count, the latest opening, 1 if Redisson has set it anew since, 1 if it was lost or -1 if nothing is known of it}. The
-- opening is 0 if none is noted, -1 without the notes.
--
-- A latch that was to expire is lost if it did before it was counted down.

local text = redis.call('GET', KEYS[1])
if text and not string.find(text, '^%-?%d+$') then
  return redis.error_reply('WRONGTYPE the key holds a string that is not a count')
end
local count = math.max(tonumber(text or 0), 0)
if not KEYS[2] then
  return { count, -1, 0, 0 }
end
local opened = tonumber(redis.call('ZSCORE', KEYS[2], 'd') or 0)
local seen = tonumber(redis.call('ZSCORE', KEYS[2], 'v') or 0)
local lost = not text and seen > 0 and ARGV[1] == '1'
if not text and seen > 0 and not lost then
  local expires = redis.call('ZSCORE', KEYS[2], 'x')
  local time = redis.call('TIME')
  lost = expires and time[1] * 1000 + math.floor(time[2] / 1000) >= tonumber(expires)
end
local unknown = not text and opened == 0 and seen == 0
return { count, opened, seen > 0 and count > seen and 1 or 0, lost and 1 or unknown and -1 or 0 }
