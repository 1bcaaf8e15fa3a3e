-- The release of a fair lock for which somebody waits. Keys, arguments and reply: release.lua.

if ARGV[4] and KEYS[4] then
  leave_line(ARGV[4])
end
if redis.pcall('EXISTS', KEYS[1]) == 1 then
  return ended
end
if grant(ARGV[2]) and ended == 1 then
  return 2
end
return ended
