-- The removal itself. Keys, arguments and reply: force_unlock.lua.

redis.call('DEL', KEYS[1])
local anybody
if KEYS[3] then
  local _, served = serve(ARGV[2], nil)
  anybody = served
end
if ARGV[1] ~= '' then
  if not anybody then
    redis.pcall(ARGV[2] == 'S' and 'SPUBLISH' or 'PUBLISH', ARGV[1], '1')
  else
    tell_readers_of_redisson(ARGV[2], ARGV[1])
  end
end
return 1
