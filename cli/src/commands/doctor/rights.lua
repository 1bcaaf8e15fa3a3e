-- Tells which commands this user may run. Runs none of them.
--
-- ARGV  for each command how many words it has, and those
--
-- Reply: for each command 1 or 0; 0 alone from a server that cannot tell. May be repeated.

local check = redis.acl_check_cmd
if not check then
  return 0
end
local answers, at = {}, 1
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  local ok, allowed = pcall(check, unpack(ARGV, at + 1, at + words))
  answers[#answers + 1] = ok and allowed and 1 or 0
  at = at + words + 1
end
return answers
