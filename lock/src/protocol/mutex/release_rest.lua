-- The release of a lock for which somebody waits. Keys, arguments and reply: release.lua.

-- Whether the lock is left to whoever comes first: Redisson's clients wait, as far as that can be counted.
local function redisson_waits()
  if not ARGV[6] or ARGV[6] == '' or ARGV[2] == 'C' then
    return ARGV[6] and ARGV[6] ~= ''
  end
  local heard = redis.pcall('PUBSUB', ARGV[2] == 'S' and 'SHARDNUMSUB' or 'NUMSUB', ARGV[5])
  local waiting = redis.pcall('ZCARD', KEYS[3])
  return heard[2] and type(waiting) == 'number' and heard[2] - waiting - ARGV[6] > 0
end

if not redisson_waits() and grant(ARGV[2]) then
  return 2
end
if ARGV[5] then
  redis.pcall(ARGV[2] == 'S' and 'SPUBLISH' or 'PUBLISH', ARGV[5], '0')
end
return 1
