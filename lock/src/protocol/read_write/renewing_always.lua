-- Something is written in any case: `WAIT` may follow, and newer servers confirm at once what wrote nothing.
local always = true

