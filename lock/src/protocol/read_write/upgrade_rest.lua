-- The upgrade itself. Keys, arguments and reply: upgrade.lua.

if writing then
  reading = nil
  return still_held(tonumber(ARGV[2]))
end
if not reading then
  return 0
end
local is_free, wait = is_free_but_for(ARGV[1])
if not is_free then
  return -1 - math.max(wait, 1)
end
local token, refused = next_token(redis.call('TIME'), 1)
if refused then
  return refused
end
redis.call('HSET', KEYS[1], 'mode', 'write', ARGV[1] .. ':write', '1')
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[1], math.max(ttl, tonumber(ARGV[2])))
redis.pcall('DEL', KEYS[4])
return tonumber(token)
