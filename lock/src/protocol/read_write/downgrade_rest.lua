-- The downgrade itself. Keys, arguments and reply: downgrade.lua.

if not reading and not writing then
  return 0
end
if writing then
  redis.call('SET', KEYS[4], '1', 'PX', ARGV[2])
  redis.call('HSET', KEYS[1], 'mode', 'read', ARGV[1], '1')
  redis.call('HDEL', KEYS[1], ARGV[1] .. ':write')
  mode, reading = 'read', '1'
  serve(ARGV[4], nil)
  tell_readers_of_redisson(ARGV[4], ARGV[5])
end
return still_held(tonumber(ARGV[2]))
