-- Takes a lock for one acquisition, or says for how long somebody else will hold it.
--
-- KEYS[1]  the lock: a hash of holder -> count, as Redisson lays it out
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- ARGV[1]  the hold: an id nobody ever used for another acquisition
-- ARGV[2]  the lease, in milliseconds
-- ARGV[3]  how long to keep the counter, in milliseconds; 0 = for ever, as Redisson expects
--
-- Reply, one integer:  > 0      held by this hold, and this is its token
--                      0        held by another, and the key has no expiry
--                      -1 - n   held by another for n milliseconds more
--
-- May be repeated: a hold that is already there gets the same answer again, and its lease from now on. The count stays
-- 1 whatever happens, so one release always ends the hold.
--
-- A failing command does not undo the writes before it: everything that can fail (WRONGTYPE, a strange counter) comes
-- before the first write.

local lease = tonumber(ARGV[2])
local mine = redis.call('HEXISTS', KEYS[1], ARGV[1])
local ttl = redis.call('PTTL', KEYS[1])
if mine == 0 and ttl ~= -2 then
  -- Held by others, if the fields are holders: an id with a colon and a count, beside the mode of a read-write lock.
  local fields, holders = redis.call('HSCAN', KEYS[1], 0)[2], 0
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    if string.find(field, '.:.') and string.find(value, '^%d+$') then
      holders = holders + 1
    elseif field ~= 'mode' or value ~= 'read' and value ~= 'write' then
      holders = -1
      break
    end
  end
  if holders <= 0 and #fields > 0 then
    return redis.error_reply('WRONGTYPE the key holds a hash whose fields are not the holders of a lock')
  end
  if ttl == -1 then
    return 0
  end
  return -1 - ttl
end

local counter = redis.call('GET', KEYS[2])
if counter and not string.match(counter, '^%d+$') then
  return redis.error_reply('BADTOKEN the counter of fencing tokens is not a number')
end
if mine == 1 and counter then
  -- Writes in any case: `WAIT` may follow, and newer servers confirm at once what wrote nothing.
  redis.call('PEXPIRE', KEYS[1], math.max(ttl, lease))
  return tonumber(counter)
end

-- The time in microseconds as a floor: the token grows even if the counter was lost in a flush or a failover.
local time = redis.call('TIME')
local token = math.max(tonumber(counter or 0) + 1, time[1] * 1000000 + time[2])
if token > 9007199254740991 then
  return redis.error_reply('BADTOKEN the counter of fencing tokens ran out of the exact integers')
end

if mine == 0 then
  redis.call('HSET', KEYS[1], ARGV[1], 1)
end
redis.call('PEXPIRE', KEYS[1], math.max(ttl, lease))
-- Lua's own number to string conversion keeps 14 digits; a token has 16.
local text = string.format('%.0f', token)
if ARGV[3] == '0' then
  redis.call('SET', KEYS[2], text)
else
  redis.call('SET', KEYS[2], text, 'PX', ARGV[3])
end
return token
