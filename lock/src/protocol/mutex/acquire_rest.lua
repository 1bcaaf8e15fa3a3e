-- The acquire of a lock that is held, or whose counter is not simply behind the time. Keys, arguments and reply: acquire.lua.

if ttl == -2 and not stands then
  local token, refused
  if text then
    token, refused = settle_token(text, text, old, 1)
  else
    token, refused = next_token(redis.call('TIME'), tonumber(ARGV[5]))
  end
  if refused then
    return refused
  end
  redis.call('HSET', KEYS[1], ARGV[1], '1')
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return tonumber(token)
end
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
  return held_by_us(ttl)
end
return foreign_data() or ttl == -1 and 0 or -1 - math.max(ttl, 0)
