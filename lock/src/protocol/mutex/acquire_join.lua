-- The acquire that joins the line. Keys, arguments and reply: acquire.lua. It stands before the functions that it has no use for.

local ticket = KEYS[3] and (ARGV[4] or ARGV[1]) or ''
if ticket ~= '' and (ttl >= 0 or stands) and call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  local ahead, where = join(ticket)
  return where and string.format('%d %d %s', stands and 0 or ttl, ahead, where) or ahead
end

