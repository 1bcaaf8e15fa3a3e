-- The step of those who wait for a plain lock: a ticket in line, and when to ask again.

local function join_line(holder, ticket, score, ttl)
  local ahead, where = join(ticket, score)
  return where and string.format('%d %d %s', poll_within(holder, ttl, ahead), ahead, where) or ahead
end

