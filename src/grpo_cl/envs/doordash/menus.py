"""Cuisines with the names of their restaurants and their dishes."""

from typing import NamedTuple

from grpo_cl.envs.doordash.database import MenuSection


class Dish(NamedTuple):
    """A dish that the restaurants of a cuisine can have on their menus."""

    name: str
    section: MenuSection
    price: float
    allergens: str = ""
    """Separated by commas."""
    options: str = ""
    """Names of ``OPTIONS``, separated by spaces."""


class Cuisine(NamedTuple):
    """The restaurants and dishes of one cuisine."""

    restaurants: tuple[str, ...]
    dishes: tuple[Dish, ...]


OPTIONS: dict[str, dict[str, float]] = {
    "size": {"regular": 0.0, "large": 3.0},
    "spice": {"mild": 0.0, "medium": 0.0, "hot": 0.0},
    "protein": {"chicken": 0.0, "tofu": 0.0, "beef": 2.0},
    "crust": {"thin": 0.0, "thick": 1.5},
    "side": {"fries": 0.0, "salad": 1.0, "rice": 0.0},
    "rice": {"white": 0.0, "brown": 1.0},
    "doneness": {"medium": 0.0, "well done": 0.0},
    "ice": {"regular": 0.0, "none": 0.0},
}

_DRINKS = (
    Dish("Sparkling Water", "drinks", 2.5),
    Dish("Lemonade", "drinks", 3.5, options="ice"),
    Dish("Iced Tea", "drinks", 3.25, options="ice"),
)

CUISINES: dict[str, Cuisine] = {
    "italian": Cuisine(
        ("Bella Radice", "Trattoria Verano", "Forno Alto", "Luna Pasta", "Casa Finocchio"),
        (
            Dish("Bruschetta", "starters", 7.5, "gluten"),
            Dish("Burrata Salad", "starters", 11.0, "dairy"),
            Dish("Margherita Pizza", "mains", 13.5, "gluten,dairy", "size crust"),
            Dish("Mushroom Pizza", "mains", 15.0, "gluten,dairy", "size crust"),
            Dish("Spaghetti Carbonara", "mains", 15.5, "gluten,dairy,egg"),
            Dish("Penne Arrabbiata", "mains", 13.0, "gluten", "spice"),
            Dish("Seafood Risotto", "mains", 19.5, "shellfish,dairy"),
            Dish("Grilled Vegetables", "mains", 12.5),
            Dish("Tiramisu", "desserts", 7.0, "dairy,egg,gluten"),
            Dish("Lemon Sorbet", "desserts", 5.0),
        ),
    ),
    "mexican": Cuisine(
        ("Cocina Paloma", "El Girasol", "Taqueria Brasa", "Tres Hermanas", "Agave Corner"),
        (
            Dish("Guacamole and Chips", "starters", 8.0),
            Dish("Street Corn", "starters", 6.5, "dairy"),
            Dish("Burrito Bowl", "mains", 12.5, "dairy", "protein rice"),
            Dish("Fish Tacos", "mains", 14.0, "fish,gluten", "spice"),
            Dish("Carnitas Tacos", "mains", 12.0, "", "spice"),
            Dish("Cheese Quesadilla", "mains", 10.5, "gluten,dairy"),
            Dish("Shrimp Fajitas", "mains", 17.5, "shellfish", "rice"),
            Dish("Black Bean Soup", "mains", 8.5),
            Dish("Churros", "desserts", 6.0, "gluten,egg"),
            Dish("Mango Paleta", "desserts", 4.5),
        ),
    ),
    "thai": Cuisine(
        ("Siam Lantern", "Basil and Lime", "Chang Mai Kitchen", "Orchid Wok", "Little Mekong"),
        (
            Dish("Spring Rolls", "starters", 6.5, "gluten,soy"),
            Dish("Chicken Satay", "starters", 8.5, "peanut"),
            Dish("Pad Thai", "mains", 13.5, "peanut,egg,fish", "protein spice"),
            Dish("Green Curry", "mains", 14.0, "fish", "protein spice"),
            Dish("Massaman Curry", "mains", 15.0, "peanut", "spice"),
            Dish("Basil Fried Rice", "mains", 12.0, "soy,egg", "protein"),
            Dish("Tom Yum Soup", "mains", 11.0, "shellfish,fish", "spice"),
            Dish("Papaya Salad", "mains", 10.0, "peanut,fish", "spice"),
            Dish("Mango Sticky Rice", "desserts", 7.0),
            Dish("Coconut Ice Cream", "desserts", 5.5),
        ),
    ),
    "japanese": Cuisine(
        ("Hoshi Sushi", "Kaze Ramen", "Umi Table", "Sakura Bento", "Takumi House"),
        (
            Dish("Edamame", "starters", 5.5, "soy"),
            Dish("Gyoza", "starters", 7.5, "gluten,soy,sesame"),
            Dish("Salmon Nigiri Set", "mains", 18.0, "fish,soy"),
            Dish("Tonkotsu Ramen", "mains", 15.5, "gluten,egg,soy", "size"),
            Dish("Vegetable Udon", "mains", 13.0, "gluten,soy", "size"),
            Dish("Chicken Teriyaki", "mains", 14.5, "soy,sesame", "rice"),
            Dish("Avocado Roll", "mains", 8.0, "sesame"),
            Dish("Shrimp Tempura", "mains", 16.0, "shellfish,gluten,egg"),
            Dish("Mochi", "desserts", 6.0),
            Dish("Matcha Cake", "desserts", 7.5, "gluten,dairy,egg"),
        ),
    ),
    "indian": Cuisine(
        ("Saffron Courtyard", "Curry Junction", "Tandoor Nights", "Masala Porch", "Lotus Dhaba"),
        (
            Dish("Vegetable Samosas", "starters", 6.0, "gluten"),
            Dish("Onion Bhaji", "starters", 6.5),
            Dish("Butter Chicken", "mains", 15.5, "dairy,tree nut", "spice"),
            Dish("Chana Masala", "mains", 12.5, "", "spice rice"),
            Dish("Lamb Vindaloo", "mains", 17.0, "", "spice"),
            Dish("Palak Paneer", "mains", 13.5, "dairy", "spice"),
            Dish("Vegetable Biryani", "mains", 13.0, "tree nut", "spice size"),
            Dish("Garlic Naan", "mains", 4.0, "gluten,dairy"),
            Dish("Gulab Jamun", "desserts", 5.5, "dairy,gluten"),
            Dish("Coconut Barfi", "desserts", 5.0),
        ),
    ),
    "burgers": Cuisine(
        ("Copper Grill", "Smash Avenue", "The Patty Yard", "Big Otis", "Flame and Bun"),
        (
            Dish("Onion Rings", "starters", 5.5, "gluten"),
            Dish("Loaded Fries", "starters", 7.0, "dairy", "size"),
            Dish("Classic Burger", "mains", 11.5, "gluten,sesame", "doneness side"),
            Dish("Cheeseburger", "mains", 12.5, "gluten,sesame,dairy", "doneness side"),
            Dish("Black Bean Burger", "mains", 11.0, "gluten,soy", "side"),
            Dish("Crispy Chicken Sandwich", "mains", 12.0, "gluten,egg", "spice side"),
            Dish("Grilled Chicken Plate", "mains", 13.5, "", "side"),
            Dish("Cobb Salad", "mains", 12.5, "egg,dairy"),
            Dish("Chocolate Shake", "desserts", 6.0, "dairy"),
            Dish("Fruit Cup", "desserts", 4.5),
        ),
    ),
    "mediterranean": Cuisine(
        ("Olive Terrace", "Cedar Mezze", "Blue Aegean", "Zaatar House", "Fig and Mint"),
        (
            Dish("Hummus Plate", "starters", 7.5, "sesame"),
            Dish("Stuffed Grape Leaves", "starters", 7.0),
            Dish("Falafel Wrap", "mains", 11.0, "gluten,sesame", "side"),
            Dish("Chicken Shawarma", "mains", 13.5, "gluten,dairy", "side"),
            Dish("Lamb Kofta", "mains", 16.5, "", "side"),
            Dish("Greek Salad", "mains", 10.5, "dairy"),
            Dish("Grilled Sea Bass", "mains", 21.0, "fish", "side"),
            Dish("Lentil Soup", "mains", 7.5, "", "size"),
            Dish("Baklava", "desserts", 5.5, "gluten,tree nut"),
            Dish("Orange Salad", "desserts", 4.5),
        ),
    ),
    "chinese": Cuisine(
        ("Jade Pavilion", "Golden Ladle", "Red Crane", "Bamboo Street", "Dragon Well"),
        (
            Dish("Pork Dumplings", "starters", 7.5, "gluten,soy"),
            Dish("Hot and Sour Soup", "starters", 6.0, "egg,soy", "size"),
            Dish("Kung Pao Chicken", "mains", 14.0, "peanut,soy", "spice rice"),
            Dish("Mapo Tofu", "mains", 12.5, "soy", "spice rice"),
            Dish("Beef with Broccoli", "mains", 15.5, "soy", "rice"),
            Dish("Vegetable Chow Mein", "mains", 12.0, "gluten,soy", "size"),
            Dish("Egg Fried Rice", "mains", 9.5, "egg,soy", "size"),
            Dish("Steamed Greens", "mains", 9.0),
            Dish("Sesame Balls", "desserts", 5.5, "sesame"),
            Dish("Lychee Jelly", "desserts", 4.0),
        ),
    ),
    "breakfast": Cuisine(
        ("Morning Finch", "The Waffle Porch", "Sunny Spoon", "Griddle and Grain", "Early Robin"),
        (
            Dish("Granola Bowl", "starters", 7.5, "dairy,tree nut"),
            Dish("Fruit Salad", "starters", 6.0),
            Dish("Buttermilk Pancakes", "mains", 10.5, "gluten,dairy,egg", "size"),
            Dish("Veggie Omelette", "mains", 11.5, "egg", "side"),
            Dish("Avocado Toast", "mains", 9.5, "gluten"),
            Dish("Breakfast Burrito", "mains", 11.0, "gluten,egg,dairy", "spice"),
            Dish("Smoked Salmon Bagel", "mains", 13.0, "fish,gluten,dairy"),
            Dish("Potato Hash", "mains", 9.0, "", "protein"),
            Dish("Cinnamon Roll", "desserts", 5.0, "gluten,dairy,egg"),
            Dish("Baked Apple", "desserts", 5.5),
        ),
    ),
    "vegan": Cuisine(
        ("Green Lantern Eats", "Sprout Society", "Root and Leaf", "The Kind Fork", "Clover Bowl"),
        (
            Dish("Kale Crisps", "starters", 5.5, "sesame"),
            Dish("Tomato Gazpacho", "starters", 6.5),
            Dish("Tempeh Bowl", "mains", 13.5, "soy", "rice spice"),
            Dish("Jackfruit Tacos", "mains", 12.5, "", "spice"),
            Dish("Cashew Mac", "mains", 13.0, "tree nut,gluten", "size"),
            Dish("Quinoa Salad", "mains", 11.5, "", "size"),
            Dish("Peanut Noodles", "mains", 12.0, "peanut,gluten,soy", "spice"),
            Dish("Mushroom Stew", "mains", 12.0, "", "rice"),
            Dish("Almond Brownie", "desserts", 5.0, "tree nut,gluten"),
            Dish("Berry Sorbet", "desserts", 4.5),
        ),
    ),
    "seafood": Cuisine(
        ("Pelican Pier", "The Salty Gull", "Anchor and Oar", "Tide Table", "Lighthouse Catch"),
        (
            Dish("Clam Chowder", "starters", 8.0, "shellfish,dairy", "size"),
            Dish("Garden Salad", "starters", 6.5),
            Dish("Fish and Chips", "mains", 15.0, "fish,gluten"),
            Dish("Grilled Salmon", "mains", 19.0, "fish", "side"),
            Dish("Lobster Roll", "mains", 22.0, "shellfish,gluten,egg", "side"),
            Dish("Shrimp Basket", "mains", 16.5, "shellfish,gluten", "side"),
            Dish("Corn and Potato Boil", "mains", 11.5, "", "spice"),
            Dish("Tuna Melt", "mains", 12.5, "fish,gluten,dairy"),
            Dish("Key Lime Pie", "desserts", 6.0, "gluten,dairy,egg"),
            Dish("Watermelon Cup", "desserts", 4.0),
        ),
    ),
    "barbecue": Cuisine(
        ("Hickory Lane", "Ember Brothers", "Smokehouse Nine", "Pit and Pecan", "Low Slow Joe"),
        (
            Dish("Cornbread", "starters", 4.5, "gluten,dairy,egg"),
            Dish("Pickle Plate", "starters", 4.0),
            Dish("Pulled Pork Plate", "mains", 14.0, "", "side size"),
            Dish("Brisket Plate", "mains", 18.0, "", "side size"),
            Dish("Smoked Turkey Sandwich", "mains", 12.5, "gluten", "side"),
            Dish("Rib Basket", "mains", 20.0, "soy", "spice side"),
            Dish("Smoked Tofu Plate", "mains", 12.0, "soy", "side"),
            Dish("Mac and Cheese", "mains", 9.0, "gluten,dairy", "size"),
            Dish("Pecan Pie", "desserts", 6.5, "gluten,egg,tree nut"),
            Dish("Peach Cup", "desserts", 4.0),
        ),
    ),
}
"""Twelve cuisines with five restaurants each."""


def dishes_of(cuisine: str) -> tuple[Dish, ...]:
    """All dishes of a cuisine, drinks last."""
    return (*CUISINES[cuisine].dishes, *_DRINKS)
