-- The step of those who wait for a plain lock: a ticket in line, and when to ask again.

local function join_line(holder, ticket, score, ttl)
  local place = join(ticket, score, ttl)
  place[1] = poll_within(holder, ttl, place[2])
  return place
end

