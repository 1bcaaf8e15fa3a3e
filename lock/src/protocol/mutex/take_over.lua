-- Takes a lock over from the owner that holds it, which handed its id to this one on purpose.
--
-- KEYS[1]  the lock: a hash of holder -> count
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- ARGV[1]  the hold: an id nobody ever used for another acquisition
-- ARGV[2]  the lease, in milliseconds
-- ARGV[3]  how long to keep the counter, in milliseconds; 0 = for ever, as Redisson expects
-- ARGV[4]  the id of the former owner: its holds are that and seven digits
--
-- Reply: n > 0        held by this hold, and this is its token
--        {token, ms}  held by this hold since an earlier request, for so long from now
--        -1           that owner does not hold it; nothing was changed
--
-- May be repeated: a hold that is there already gets the same answer again. The former hold is gone with the first time, and
-- its process is told so by its next renewal.

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
  return held_by_us(redis.call('PTTL', KEYS[1]))
end
for _, former in ipairs(redis.call('HSCAN', KEYS[1], 0)[2]) do
  if string.sub(former, 1, #ARGV[4]) == ARGV[4] and string.find(former, '^%d%d%d%d%d%d%d$', #ARGV[4] + 1) then
    local token, refused = next_token(redis.call('TIME'), 1)
    if refused then
      return refused
    end
    redis.call('HSET', KEYS[1], ARGV[1], '1')
    redis.call('HDEL', KEYS[1], former)
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return tonumber(token)
  end
end
return -1
