-- The second phase of a fenced hold at several independent nodes: writes the fencing token that is above the counters of a
-- majority of them, where the hold still is.
--
-- KEYS[1]  the lock: a hash of holder -> count
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- ARGV[1]  the hold
-- ARGV[2]  the token
-- ARGV[3]  how long to keep the counter, in milliseconds; 0 = for ever, as Redisson expects
--
-- Reply: 1 the counter is the token or more, 0 the hold is gone and nothing has changed.
--
-- May be repeated: the counter only ever grows. Not so without the hold: the holder that came after it has read the counter,
-- and a late copy must not tell later ones that they are older than they are.

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0
end
local counter = redis.call('GET', KEYS[2])
if counter and not string.find(counter, '^%d+$') then
  return redis.error_reply('BADTOKEN the counter of fencing tokens is not a number')
end
if not counter or tonumber(counter) < tonumber(ARGV[2]) then
  if ARGV[3] == '0' then
    redis.call('SET', KEYS[2], ARGV[2])
  else
    redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
  end
end
return 1
