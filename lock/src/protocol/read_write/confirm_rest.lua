-- The confirmation itself. Keys, arguments and reply: confirm.lua.

if not reading and not writing then
  return 0
end
return still_held(tonumber(ARGV[2]))
