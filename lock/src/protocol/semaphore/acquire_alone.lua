-- Asks whether a hold is there, by the key of what is taken only. For a slot that is migrating, where keys of which some do
-- not exist cannot be used together: nothing can be taken there without the number of what is free.
--
-- KEYS[1]  the permits that are taken: a sorted set of 16 bytes -> time of expiry in milliseconds
-- ARGV[1]  the hold
-- ARGV[2]  its permits
--
-- Reply: {ms}  held by this hold, for so long from now
--        -251  not held: asked again in 250 ms
--
-- May be repeated: it writes only what is there. Something is written for a hold that is there: `WAIT` may follow, and newer
-- servers confirm at once what wrote nothing.

local left, refused = renew(KEYS[1], ARGV[1], tonumber(ARGV[2]), 0, true)
return refused or left and { left } or -251
